"""The methods of loaded models and of training runs in Python: predict, attention, figures.

model = saccade.load("linglo_nano")
answer = model.predict("cat.jpg")                        label, score, ...
run = saccade.train("finetune", data="FOLDER")           metrics, figures, model
"""
