"""A sweep: which jobs it has and in what order, their directories, running them, ``sweep.json``.

What Hydra calls is in ``hydra_plugins``; everything else is here and knows Hydra's configuration,
but no torch: the process of a sweep only waits for its jobs.
"""
