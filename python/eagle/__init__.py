"""What python/train_eagle.py is made of: the target in PyTorch, its texts, the head, its training and its file."""
