"""LUFFY (arXiv 2504.14945): a response of a stronger model joins the sampled responses."""
