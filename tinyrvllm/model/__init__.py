"""What a model is: its file, its tokenizer, its maths. Knows no GPU."""
