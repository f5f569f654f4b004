"""Records in, numbers out; never trains and does not import torch."""
