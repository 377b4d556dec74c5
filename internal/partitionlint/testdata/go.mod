module example.com/code

go 1.26.0
