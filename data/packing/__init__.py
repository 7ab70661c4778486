"""Who packs, and when: nobody, the trainer, or the loader."""
