"""What is trained on, to look at: ``python -m data.show``. No torch here."""
