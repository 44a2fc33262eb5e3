"""NNEF 1.0, final and provisional (Khronos): what no other format reads or writes."""
