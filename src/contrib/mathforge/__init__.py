"""MathForge (arXiv 2601.20614): larger weights for harder questions, and training on harder wordings.

The two parts are DGPO and MQR.
"""
