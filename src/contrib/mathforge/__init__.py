"""MathForge (arXiv 2601.20614): harder questions weigh more, and harder wordings of them are trained on (DGPO, MQR)."""
