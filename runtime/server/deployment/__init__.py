"""Files that run edgedec as a service: a container file, units of systemd, and an add-on of Home Assistant."""
