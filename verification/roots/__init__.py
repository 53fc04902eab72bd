"""Where demonstrations, event scripts and soaks keep the roots of their clusters."""
