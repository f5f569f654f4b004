"""The same algorithms across machines, on Flower: the only room that knows flwr, behind `adapter`.

`site` is what happens at a site and `rounds` what happens at the server; both know nothing of the network. `codec`
turns what they exchange into Flower messages and back, and looks at everything that comes in. `client_app` and
`server_app` are a plain Flower app. `site_process`, `server_process` and `run_process` are the processes of
`perinvfl federation`: a site, the server, a run. `adapter` is all that they use of Flower.
"""
