"""What check_certificate.py checks, with plain loops and the standard library only."""
