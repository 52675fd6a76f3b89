"""What the path of a request does without: each folder is one feature, described by its `feature.py`.

Nothing outside imports a feature; `gateway/feature.py` finds them by its table of import strings.
"""
