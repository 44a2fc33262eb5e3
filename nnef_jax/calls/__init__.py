"""Checks arguments of calls, runs batches of any size, and trims results.

Where are the inputs of a call matched with those of the graph? `arguments`
Where are the dtype and the shape of an input checked and converted? `array_conversion`
Where is a batch split, or filled up to a compiled size? `batcher`
Where are items padded to a compiled length, and results trimmed? `buckets`
Where is padding cut off outputs? `trimming`
"""
