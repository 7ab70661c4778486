"""Models as Hugging Face's libraries publish them: their configuration, names and files.

What is read when settings are resolved (``shape.py``, ``config.py``, ``gguf.py``) imports no torch,
and nothing here but an export's check imports ``transformers``.
"""
