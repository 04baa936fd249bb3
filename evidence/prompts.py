"""Twenty prompts of the project's own, of different kinds and lengths, for evidence on the real model."""

PROMPTS = (
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A farmer has 17 sheep and buys 3 times as many. How many does he have now? Show the steps.",
    "Repeat this sentence three times: The quick brown fox jumps over the lazy dog.",
    "List five animals that live in the sea, one per line.",
    "Translate to French: Good morning, how are you today?",
    "Write a limerick about a cat who likes to read.",
    'Turn this into JSON with the keys name, age and city: "Maria is 34 and lives in Porto."',
    "What is the capital of Australia, and why is it not Sydney?",
    "Summarise: The meeting was moved from Monday to Wednesday because the room was being painted. The new time is ten "
    "o'clock. Everyone who planned to attend on Monday should bring the same documents on Wednesday at ten o'clock.",
    "Write a SQL query that counts the orders of each customer in the table orders(customer_id, total).",
    "Give me a recipe for pancakes with exact amounts.",
    "Who wrote Don Quixote, and in which century?",
    "If a train travels 60 km in 45 minutes, what is its speed in km per hour?",
    "Write an email to a neighbour asking to borrow a ladder.",
    "Count from 1 to 30 separated by commas.",
    "Explain recursion to a ten-year-old.",
    "Name three differences between a list and a tuple in Python.",
    "Continue the story: The lighthouse keeper counted the ships at dawn. That day there was one too many.",
    "Copy the following lines exactly, with the line numbers:\n1. alpha beta gamma\n2. beta gamma delta\n"
    "3. gamma delta epsilon\n4. delta epsilon zeta",
)
