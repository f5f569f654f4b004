"""Models out: one client's model with its pre-processing in a file that other programs read, and its model card.

`module` is the model to deploy, `formats` writes and reads safetensors, ONNX and PT2, `card` tells people what it is,
`inputs` reads what is to be predicted, `predict` answers for it.
"""
