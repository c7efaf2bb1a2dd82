"""``manage.py demo``: one big shop and five small ones share four workers, with limits and without."""
