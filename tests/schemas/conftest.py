"""``site`` needs the settings of this project; ``test_site.py`` runs it with them."""

collect_ignore = ["site"]
