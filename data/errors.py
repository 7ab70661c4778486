"""What this package raises when the user's data or a setting about it is at fault."""


class DataError(Exception):
    """The data cannot be used as asked; the message is complete and meant for the user."""
