"""Actions on more rows than a request should change: a background job of ours carries them out.

`start` freezes what was confirmed, in `chunks`; `run` is the job, and `commission` in whose name it acts. `work` is
what it has at hand, and `ways` how it does that. `report` says in words how far it is, on the `pages`.
"""
