"""The benchmark: is speculation faster here, by how much, and where does a round's time go?"""
