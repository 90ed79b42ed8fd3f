"""What ``edgedec simulate --bench NAME`` runs: one file each, with a ``run``; the file's name is NAME."""
