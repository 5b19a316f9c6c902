"""Reading a model while it runs: inputs and output gradients of the watched layers."""
