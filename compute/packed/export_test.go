package packed

var RoomFor = roomFor
