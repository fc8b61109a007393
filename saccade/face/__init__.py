"""Three lines from a picture to an answer: what `saccade.load` and `saccade.train` give in Python.

model = saccade.load("linglo_nano")
answer = model.predict("cat.jpg")                        label, score, ...
run = saccade.train("finetune", data="FOLDER")           metrics, figures, model
"""
