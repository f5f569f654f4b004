"""Models out: one client's model with its pre-processing in a file that other programs read, and its model card.

`module` is the model to deploy, `formats` writes and reads safetensors, ONNX and PT2, `card` tells people what it is,
`predict` reads tables and arrays and answers for them.
"""
