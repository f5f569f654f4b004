"""The paper's theorems as experiments: each module states what is asked, computes it, and says whether it held."""
