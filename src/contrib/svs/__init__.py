"""SvS (arXiv 2508.14029): the policy writes variations of questions that it seldom solves.

The policy is trained on the questions, on the writing of variations, and on the variations.
"""
