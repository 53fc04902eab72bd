"""The commands behind the administrator's verbs."""
