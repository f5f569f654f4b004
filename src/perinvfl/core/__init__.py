"""What everything else stands on: trees of tensors, seeds, optimizer steps, declared settings, files, own code."""
