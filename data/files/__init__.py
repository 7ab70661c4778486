"""Files of records, whatever their kind: found, opened, and given random access.

places.py       where files are: on this machine, or behind msc://
storage.py      what data.path names -> files, and the splits they are divided into
containers/     the kinds of file, one module each
open.py         a file -> an indexed one; convert.py, once, for what has no random access
"""
