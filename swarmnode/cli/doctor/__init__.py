"""What is wrong here, for the owner and for those who help: ``doctor``, ``support-bundle``."""
