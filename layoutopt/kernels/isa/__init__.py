"""What the instructions of machine code do: a table with an entry a mnemonic."""
