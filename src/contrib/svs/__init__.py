"""SvS (arXiv 2508.14029): the policy writes variations of questions that it seldom solves, and is trained on both."""
