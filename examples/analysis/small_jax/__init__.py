"""A stand-in of a few lines with the API shape of a well-known library: gradients of functions, here by differences."""

import numpy as numpy


def grad(function):
    def differentiate(params, *rest):
        found = numpy.zeros_like(params)
        for place in range(params.size):
            up, down = params.copy(), params.copy()
            up.flat[place] += 1e-5
            down.flat[place] -= 1e-5
            found.flat[place] = (function(up, *rest) - function(down, *rest)) / 2e-5
        return found

    return differentiate


def jit(function):
    return function
