"""What is wrong here, for the owner and for people who help: ``doctor``, ``support-bundle``."""
