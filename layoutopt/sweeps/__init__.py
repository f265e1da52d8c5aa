"""Many problems: solved by processes or a cluster, kept in a store, exported and reported."""
