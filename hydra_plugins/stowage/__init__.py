"""What Hydra finds by the name of the package: the sweeper and the launchers."""
