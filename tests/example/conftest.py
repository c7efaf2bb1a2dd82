"""``site`` needs the settings of the example project; ``test_site.py`` runs it with them."""

collect_ignore = ["site"]
