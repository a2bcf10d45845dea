"""The first study: do the claims of TA-GRPO and of Pass@k training hold on a small task?"""
