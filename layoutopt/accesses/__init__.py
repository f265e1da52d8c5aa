"""Which elements every lane of an access touches, from each way of saying it."""
