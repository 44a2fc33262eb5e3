"""The dialect of tract and torch_to_nnef: its text, its operations' declarations, its data."""
