package model

// KeysSeen is keysSeen.
var KeysSeen = keysSeen
