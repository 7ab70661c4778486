"""The kinds of file that records come in, one module each; there is no list of them."""
