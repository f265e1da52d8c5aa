"""Instructions chosen with the layout: from who holds which elements to who wants them."""
