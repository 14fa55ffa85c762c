"""`kubectl tpu dashboard`: a page on loopback that shows and changes nothing (docs/dashboard.md).

`board` knows the cluster, `views` and what it uses turn objects into HTML and are pure, `web` serves that.
"""
