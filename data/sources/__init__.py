"""Where conversations come from: one file per source, one YAML in ``conf/data`` for each."""
